-- Newest canary result of 30 days that counts, of each metric of each device of a node. sign: -1 where less is better.
-- stored
WITH ordered AS (
    SELECT
        r.node AS node,
        r.class AS class,
        r.platform AS platform,
        r.class_digest AS class_digest,
        r.runner AS runner,
        r.simulated AS simulated,
        r.job AS job,
        r.verified AS verified,
        r.metric AS metric,
        r.quantile AS quantile,
        r.device AS device,
        r.unit AS unit,
        r.sign AS sign,
        r.seconds AS seconds,
        r.runs AS runs,
        r.value AS value,
        r.bound AS bound,
        r.sm_mhz AS sm_mhz,
        r.device_sm_mhz AS device_sm_mhz,
        row_number() OVER (
            PARTITION BY r.node, r.metric, r.quantile, r.device
            ORDER BY r.seconds DESC, r.result DESC
        ) AS age
    FROM results AS r
    WHERE r.uncounted IS NULL AND r.metric IS NOT NULL
)

SELECT
    node,
    class,
    platform,
    class_digest,
    runner,
    simulated,
    job,
    verified,
    metric,
    quantile,
    device,
    unit,
    sign,
    seconds,
    runs,
    value,
    bound,
    sm_mhz,
    device_sm_mhz
FROM ordered
WHERE age = 1
