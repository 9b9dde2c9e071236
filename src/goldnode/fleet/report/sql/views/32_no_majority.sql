-- Facts for which no value has a majority: never drift. One row for each value.
-- A fact that differs on nearly every node is an identity, and not listed.
WITH open AS (
    SELECT d.class AS class, d.platform AS platform, d.key AS key, d.slot AS slot, max(d.total) AS total, count(*) AS variants
    FROM distribution AS d
    LEFT JOIN usual AS u ON u.class = d.class AND u.platform = d.platform AND u.key = d.key AND u.slot = d.slot
    WHERE u.key IS NULL
    GROUP BY d.class, d.platform, d.key, d.slot
)

SELECT
    d.class AS class,
    d.platform AS platform,
    k.topic AS topic,
    d.key AS key,
    d.slot AS slot,
    d.value AS value,
    d.n AS n,
    o.total AS total
FROM open AS o
INNER JOIN distribution AS d ON d.class = o.class AND d.platform = o.platform AND d.key = o.key AND d.slot = o.slot
INNER JOIN keys AS k ON k.key = d.key
WHERE o.total > 1 AND o.variants > 1 AND (k.agree = 1 OR o.total = 2 OR 2 * o.variants <= o.total)
