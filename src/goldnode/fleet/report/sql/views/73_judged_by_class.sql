-- Newest canary results that no baseline fits, by robust statistics of the devices in the same circumstances.
-- The floor is the median of the devices, less the greater of `loss` and of `sigmas` robust standard deviations.
-- stored
WITH others AS (
    SELECT
        n.node AS node,
        n.class AS class,
        n.platform AS platform,
        n.class_digest AS class_digest,
        n.runner AS runner,
        n.simulated AS simulated,
        n.metric AS metric,
        n.quantile AS quantile,
        n.device AS device,
        n.runs AS runs,
        n.sign * n.value AS value,
        n.sign * n.bound AS bound,
        n.sm_mhz AS sm_mhz,
        n.device_sm_mhz AS device_sm_mhz
    FROM newest AS n
    LEFT JOIN judged_by_floors AS f
        ON f.node = n.node AND f.metric = n.metric AND f.quantile = n.quantile AND f.device = n.device
    WHERE f.node IS NULL
),

clocks AS (
    SELECT class, platform, class_digest, runner, simulated, metric, quantile, middle(sm_mhz) AS mhz,
        middle(device_sm_mhz) AS device_mhz
    FROM others
    WHERE sm_mhz IS NOT NULL
    GROUP BY class, platform, class_digest, runner, simulated, metric, quantile
),

checked AS (
    SELECT
        o.node AS node,
        o.class AS class,
        o.platform AS platform,
        o.class_digest AS class_digest,
        o.runner AS runner,
        o.simulated AS simulated,
        o.metric AS metric,
        o.quantile AS quantile,
        o.device AS device,
        o.value AS value,
        o.bound AS bound,
        CASE
            WHEN
                c.mhz IS NOT NULL AND o.sm_mhz IS NOT NULL
                AND NOT (o.sm_mhz >= c.mhz * (1 - s.clock) AND o.sm_mhz <= c.mhz * (1 + s.clock))
                AND NOT (
                    o.device_sm_mhz >= c.device_mhz * (1 - s.clock) AND o.device_sm_mhz <= c.device_mhz * (1 + s.clock)
                )
                THEN 'another clock'
            WHEN o.runs < s.runs OR o.bound IS NULL THEN 'too few runs'
            ELSE ''
        END AS why
    FROM others AS o
    CROSS JOIN settings AS s
    LEFT JOIN clocks AS c
        ON c.class = o.class AND c.platform = o.platform AND c.class_digest = o.class_digest AND c.runner = o.runner
        AND c.simulated = o.simulated AND c.metric = o.metric AND c.quantile = o.quantile
),

centres AS (
    SELECT class, platform, class_digest, runner, simulated, metric, quantile, middle(value) AS value,
        CAST(count(DISTINCT node) AS INTEGER) AS nodes, count(*) AS devices
    FROM checked
    WHERE why = ''
    GROUP BY class, platform, class_digest, runner, simulated, metric, quantile
),

spreads AS (
    SELECT k.class AS class, k.platform AS platform, k.class_digest AS class_digest, k.runner AS runner, k.simulated AS simulated,
        k.metric AS metric, k.quantile AS quantile, 1.4826 * middle(abs(k.value - c.value)) AS sigma
    FROM checked AS k
    INNER JOIN centres AS c
        ON c.class = k.class AND c.platform = k.platform AND c.class_digest = k.class_digest AND c.runner = k.runner
        AND c.simulated = k.simulated AND c.metric = k.metric AND c.quantile = k.quantile
    WHERE k.why = ''
    GROUP BY k.class, k.platform, k.class_digest, k.runner, k.simulated, k.metric, k.quantile
),

placed AS (
    SELECT
        k.node AS node,
        k.metric AS metric,
        k.quantile AS quantile,
        k.device AS device,
        k.bound AS bound,
        CASE
            WHEN k.why <> '' THEN k.why
            WHEN c.nodes < s.least_nodes OR c.devices < s.least_devices THEN 'too few devices of the class'
            ELSE ''
        END AS why,
        c.value AS centre,
        c.value - greatest(s.loss * abs(c.value), s.sigmas * p.sigma) AS floor_value,
        c.nodes AS nodes
    FROM checked AS k
    CROSS JOIN settings AS s
    LEFT JOIN centres AS c
        ON c.class = k.class AND c.platform = k.platform AND c.class_digest = k.class_digest AND c.runner = k.runner
        AND c.simulated = k.simulated AND c.metric = k.metric AND c.quantile = k.quantile
    LEFT JOIN spreads AS p
        ON p.class = k.class AND p.platform = k.platform AND p.class_digest = k.class_digest AND p.runner = k.runner
        AND p.simulated = k.simulated AND p.metric = k.metric AND p.quantile = k.quantile
)

SELECT
    d.node AS node,
    d.metric AS metric,
    d.quantile AS quantile,
    d.device AS device,
    abs(d.centre) AS usual,
    abs(d.floor_value) AS floor_value,
    d.nodes AS nodes,
    CASE WHEN d.why <> '' THEN 'inconclusive' WHEN d.bound < d.floor_value THEN 'slow' ELSE 'passes' END AS answer,
    d.why AS why
FROM placed AS d
