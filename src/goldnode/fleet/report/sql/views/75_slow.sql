-- Slow nodes: by canary results, compared with floors or with their class, and by the metrics of captures.
-- loss: share of the usual speed that is lost. seconds: time of the newest value.
SELECT
    v.node AS node,
    v.class AS class,
    'canary' AS origin,
    v.basis AS basis,
    v.metric AS metric,
    v.quantile AS quantile,
    v.device AS item,
    v.unit AS unit,
    v.runs AS n,
    v.value AS value,
    v.bound AS bound,
    v.floor_value AS floor_value,
    v.usual AS centre,
    v.nodes AS nodes,
    v.loss AS loss,
    v.seconds AS seconds,
    v.date AS date,
    v.verified AS verified
FROM speed AS v
INNER JOIN latest AS l ON l.node = v.node
WHERE v.answer = 'slow'
UNION ALL
SELECT
    c.node AS node,
    c.class AS class,
    'captures' AS origin,
    'class' AS basis,
    c.key AS metric,
    'p50' AS quantile,
    c.item AS item,
    '' AS unit,
    CAST(c.n AS INTEGER) AS n,
    c.value AS value,
    c.bound AS bound,
    c.floor_value AS floor_value,
    c.centre AS centre,
    CAST(c.nodes AS INTEGER) AS nodes,
    c.loss AS loss,
    l.seconds AS seconds,
    '' AS date,
    1 AS verified
FROM slow_captures AS c
INNER JOIN latest AS l ON l.node = c.node
