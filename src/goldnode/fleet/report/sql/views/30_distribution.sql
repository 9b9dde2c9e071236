-- How many known nodes of a class and platform have each value of a fact, and how many have the fact at all.
-- slot: the part by name, such as a mount; empty where parts are interchangeable, such as GPUs.
-- stored
WITH present AS (
    SELECT p.place AS place, f.key AS key, '' AS slot, f.value AS value
    FROM facts AS f
    INNER JOIN keys AS k ON k.key = f.key
    INNER JOIN peers AS p ON p.node = f.node AND p.time = f.time
    WHERE k.kind = 'fact' AND k.compared = 1 AND k.loose = 1 AND f.fault IS NULL
    GROUP BY p.place, f.key, f.value
),

loose AS (
    SELECT p.class AS class, p.platform AS platform, r.key AS key, r.slot AS slot, r.value AS value, count(*) AS n
    FROM present AS r
    INNER JOIN peers AS p ON p.place = r.place
    GROUP BY p.class, p.platform, r.key, r.slot, r.value
),

loose_total AS (
    SELECT p.class AS class, p.platform AS platform, r.key AS key, count(DISTINCT r.place) AS total
    FROM present AS r
    INNER JOIN peers AS p ON p.place = r.place
    GROUP BY p.class, p.platform, r.key
),

named AS (
    SELECT p.class AS class, p.platform AS platform, f.key AS key, f.item AS slot, f.value AS value, count(*) AS n
    FROM facts AS f
    INNER JOIN keys AS k ON k.key = f.key
    INNER JOIN peers AS p ON p.node = f.node AND p.time = f.time
    WHERE k.kind = 'fact' AND k.compared = 1 AND k.loose = 0 AND f.fault IS NULL
    GROUP BY p.class, p.platform, f.key, f.item, f.value
)

SELECT l.class AS class, l.platform AS platform, l.key AS key, l.slot AS slot, l.value AS value, l.n AS n, t.total AS total
FROM loose AS l
INNER JOIN loose_total AS t ON t.class = l.class AND t.platform = l.platform AND t.key = l.key
UNION ALL
SELECT
    class,
    platform,
    key,
    slot,
    value,
    n,
    sum(n) OVER (PARTITION BY class, platform, key, slot) AS total
FROM named
