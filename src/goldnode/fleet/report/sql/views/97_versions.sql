-- Known nodes of each class by what cohorts must agree on: driver, kernel, firmware.
WITH held AS (
    SELECT DISTINCT p.class AS class, p.node AS node, k.topic AS topic, f.key AS key, f.value AS value
    FROM facts AS f
    INNER JOIN keys AS k ON k.key = f.key
    INNER JOIN peers AS p ON p.node = f.node AND p.time = f.time
    WHERE k.agree = 1 AND f.fault IS NULL
)

SELECT class, topic, key, value, count(*) AS nodes
FROM held
GROUP BY class, topic, key, value
