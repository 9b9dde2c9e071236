-- Every newest canary result with its answer. basis: floors (a baseline fits) or class (robust statistics of its devices).
-- stored
WITH judged AS (
    SELECT node, metric, quantile, device, usual, floor_value, nodes, answer, why, date, 'floors' AS basis
    FROM judged_by_floors
    UNION ALL
    SELECT node, metric, quantile, device, usual, floor_value, nodes, answer, why, '' AS date, 'class' AS basis
    FROM judged_by_class
)

SELECT
    n.node AS node,
    n.class AS class,
    n.platform AS platform,
    n.simulated AS simulated,
    n.job AS job,
    n.verified AS verified,
    n.metric AS metric,
    n.quantile AS quantile,
    n.device AS device,
    n.unit AS unit,
    n.seconds AS seconds,
    n.runs AS runs,
    n.value AS value,
    n.bound AS bound,
    j.usual AS usual,
    j.floor_value AS floor_value,
    j.nodes AS nodes,
    j.basis AS basis,
    j.answer AS answer,
    j.why AS why,
    j.date AS date,
    CASE WHEN j.usual IS NULL THEN 0 WHEN n.sign > 0 THEN 1 - n.value / j.usual ELSE 1 - j.usual / n.value END AS loss
FROM newest AS n
INNER JOIN judged AS j ON j.node = n.node AND j.metric = n.metric AND j.quantile = n.quantile AND j.device = n.device
