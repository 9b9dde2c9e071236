-- Values of single nodes that differ from the majority, and facts that the majority has and a node lacks.
-- With slot `1 of 8`, it is one that some GPUs of the node lack (view missing_values).
-- stored
WITH sizes AS (
    SELECT class, platform, count(*) AS nodes
    FROM peers
    GROUP BY class, platform
),

expected_values AS (
    SELECT class, platform, key, slot, listed(value) AS value, max(n) AS n, max(total) AS total
    FROM usual
    GROUP BY class, platform, key, slot
),

rare AS (
    SELECT
        d.class AS class,
        d.platform AS platform,
        d.key AS key,
        d.slot AS slot,
        d.value AS value,
        e.value AS usual_value,
        e.n AS n,
        e.total AS total
    FROM distribution AS d
    INNER JOIN expected_values AS e
        ON e.class = d.class AND e.platform = d.platform AND e.key = d.key AND e.slot = d.slot
    LEFT JOIN usual AS u
        ON u.class = d.class AND u.platform = d.platform AND u.key = d.key AND u.slot = d.slot AND u.value = d.value
    WHERE u.key IS NULL
),

rare_keys AS (
    SELECT key, max(slot) AS slot
    FROM rare
    GROUP BY key
),

held AS (
    SELECT p.node AS node, p.class AS class, p.platform AS platform, f.key AS key, k.topic AS topic,
        CASE WHEN k.loose = 1 THEN '' ELSE f.item END AS slot, f.value AS value
    FROM peer_facts AS f
    INNER JOIN rare_keys AS r ON r.key = f.key
    INNER JOIN keys AS k ON k.key = f.key
    INNER JOIN peers AS p ON p.place = f.place
    WHERE f.fault IS NULL
),

gaps AS (
    SELECT e.class AS class, e.platform AS platform, e.key AS key, e.slot AS slot, e.value AS usual_value, e.n AS n,
        e.total AS total, k.topic AS topic, k.loose AS loose
    FROM expected_values AS e
    INNER JOIN sizes AS z ON z.class = e.class AND z.platform = e.platform
    INNER JOIN keys AS k ON k.key = e.key
    CROSS JOIN settings AS s
    WHERE e.total < z.nodes AND e.total >= s.min_share * z.nodes AND k.optional = 0
),

gap_keys AS (
    SELECT key, max(loose) AS loose
    FROM gaps
    GROUP BY key
),

filled AS (
    SELECT DISTINCT f.place AS place, f.key AS key, CASE WHEN g.loose = 1 THEN '' ELSE f.item END AS slot
    FROM peer_facts AS f
    INNER JOIN gap_keys AS g ON g.key = f.key
)

SELECT DISTINCT
    h.node AS node,
    h.class AS class,
    h.platform AS platform,
    h.topic AS topic,
    h.key AS key,
    h.slot AS slot,
    r.usual_value AS usual_value,
    h.value AS value,
    r.n AS n,
    r.total AS total
FROM held AS h
INNER JOIN rare AS r
    ON r.class = h.class AND r.platform = h.platform AND r.key = h.key AND r.slot = h.slot AND r.value = h.value
UNION ALL
SELECT
    p.node AS node,
    p.class AS class,
    p.platform AS platform,
    g.topic AS topic,
    g.key AS key,
    g.slot AS slot,
    g.usual_value AS usual_value,
    NULL AS value,
    g.n AS n,
    g.total AS total
FROM gaps AS g
INNER JOIN peers AS p ON p.class = g.class AND p.platform = g.platform
LEFT JOIN filled AS f ON f.place = p.place AND f.key = g.key AND f.slot = g.slot
WHERE f.place IS NULL
UNION ALL
SELECT
    m.node AS node,
    m.class AS class,
    m.platform AS platform,
    m.topic AS topic,
    m.key AS key,
    m.slot AS slot,
    coalesce(e.value, 'a value') AS usual_value,
    NULL AS value,
    m.n AS n,
    m.total AS total
FROM missing_values AS m
LEFT JOIN expected_values AS e ON e.class = m.class AND e.platform = m.platform AND e.key = m.key AND e.slot = ''
