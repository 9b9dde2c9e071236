-- How many known nodes of a class and platform have each value of a fact, and how many have the fact at all.
-- slot: the part by name, such as a mount; empty where parts are interchangeable, such as GPUs.
-- stored
WITH loose AS (
    SELECT p.pool AS pool, v.number AS number, v.value AS value, count(*) AS n
    FROM loose_values AS v
    INNER JOIN peers AS p ON p.place = v.place
    WHERE v.value IS NOT NULL
    GROUP BY p.pool, v.number, v.value
),

loose_total AS (
    SELECT p.pool AS pool, v.number AS number, count(DISTINCT v.place) AS total
    FROM loose_values AS v
    INNER JOIN peers AS p ON p.place = v.place
    WHERE v.value IS NOT NULL
    GROUP BY p.pool, v.number
),

named AS (
    SELECT p.pool AS pool, f.key AS key, f.item AS slot, f.value AS value, count(*) AS n
    FROM peer_facts AS f
    INNER JOIN keys AS k ON k.key = f.key
    INNER JOIN peers AS p ON p.place = f.place
    WHERE k.kind = 'fact' AND k.compared = 1 AND k.loose = 0 AND f.fault IS NULL
    GROUP BY p.pool, f.key, f.item, f.value
),

counted AS (
    SELECT l.pool AS pool, k.key AS key, '' AS slot, l.value AS value, l.n AS n, t.total AS total
    FROM loose AS l
    INNER JOIN loose_total AS t ON t.pool = l.pool AND t.number = l.number
    INNER JOIN keys AS k ON k.number = l.number
    UNION ALL
    SELECT pool, key, slot, value, n, sum(n) OVER (PARTITION BY pool, key, slot) AS total
    FROM named
)

SELECT o.class AS class, o.platform AS platform, c.key AS key, c.slot AS slot, c.value AS value, c.n AS n, c.total AS total
FROM counted AS c
INNER JOIN pools AS o ON o.pool = c.pool
