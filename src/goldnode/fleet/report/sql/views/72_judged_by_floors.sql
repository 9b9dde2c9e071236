-- Newest canary results that a baseline fits, with its floor. answer: slow, passes or inconclusive, as floors check.
-- stored
WITH fitting AS (
    SELECT
        n.node AS node,
        n.metric AS metric,
        n.quantile AS quantile,
        n.device AS device,
        n.sign AS sign,
        n.runs AS runs,
        n.bound AS bound,
        n.sm_mhz AS sm_mhz,
        n.device_sm_mhz AS device_sm_mhz,
        f.usual AS usual,
        f.floor_value AS floor_value,
        f.nodes AS nodes,
        f.results AS results,
        f.node AS of_node,
        f.low_mhz AS low_mhz,
        f.high_mhz AS high_mhz,
        f.device_mhz AS device_mhz,
        f.date AS date
    FROM newest AS n
    INNER JOIN floors AS f
        ON f.class = n.class AND f.platform = n.platform AND f.class_digest = n.class_digest AND f.runner = n.runner
        AND f.simulated = n.simulated AND f.metric = n.metric AND f.quantile = n.quantile
    WHERE (f.node = '' OR f.node = n.node) AND (f.device = '' OR f.device = n.device)
),

checked AS (
    SELECT
        t.node AS node,
        t.metric AS metric,
        t.quantile AS quantile,
        t.device AS device,
        t.usual AS usual,
        t.floor_value AS floor_value,
        t.nodes AS nodes,
        t.date AS date,
        CASE
            WHEN
                t.low_mhz >= 0 AND t.sm_mhz IS NOT NULL
                AND NOT (t.sm_mhz >= t.low_mhz * (1 - s.clock) AND t.sm_mhz <= t.high_mhz * (1 + s.clock))
                AND NOT (
                    t.device_sm_mhz >= t.device_mhz * (1 - s.clock) AND t.device_sm_mhz <= t.device_mhz * (1 + s.clock)
                )
                THEN 'another clock'
            WHEN t.runs < s.runs OR t.bound IS NULL THEN 'too few runs'
            WHEN t.sign * t.bound >= t.sign * t.floor_value THEN ''
            WHEN t.of_node <> '' AND t.results < s.least_results THEN 'too few results in the baseline'
            ELSE 'slow'
        END AS found
    FROM fitting AS t
    CROSS JOIN settings AS s
)

SELECT
    node,
    metric,
    quantile,
    device,
    usual,
    floor_value,
    nodes,
    date,
    CASE WHEN found = '' THEN 'passes' WHEN found = 'slow' THEN 'slow' ELSE 'inconclusive' END AS answer,
    CASE WHEN found IN ('', 'slow') THEN '' ELSE found END AS why
FROM checked
