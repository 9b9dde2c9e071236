-- Cohorts and other groups whose known nodes differ in what they must agree on. One row for each value.
WITH members AS (
    SELECT l.cohort AS name, l.node AS node, l.time AS time
    FROM latest AS l
    WHERE l.known = 1 AND coalesce(l.cohort, '') <> ''
    UNION ALL
    SELECT g.name AS name, l.node AS node, l.time AS time
    FROM groups AS g
    INNER JOIN latest AS l ON l.node = g.node
    WHERE l.known = 1
),

held AS (
    SELECT DISTINCT
        m.name AS name,
        m.node AS node,
        k.topic AS topic,
        f.key AS key,
        CASE WHEN k.loose = 1 THEN '' ELSE f.item END AS slot,
        f.value AS value
    FROM facts AS f
    INNER JOIN keys AS k ON k.key = f.key
    INNER JOIN members AS m ON m.node = f.node AND m.time = f.time
    WHERE k.agree = 1 AND f.fault IS NULL
),

counted AS (
    SELECT name, topic, key, slot, value, count(*) AS n, names(node) AS nodes
    FROM held
    GROUP BY name, topic, key, slot, value
),

differing AS (
    SELECT name, key, slot, count(*) AS variants, sum(n) AS total
    FROM counted
    GROUP BY name, key, slot
)

SELECT c.name AS name, c.topic AS topic, c.key AS key, c.slot AS slot, c.value AS value, c.n AS n, c.nodes AS nodes
FROM counted AS c
INNER JOIN differing AS d ON d.name = c.name AND d.key = c.key AND d.slot = c.slot
WHERE d.variants > 1
