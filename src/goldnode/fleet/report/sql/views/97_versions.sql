-- Known nodes of each class by what cohorts must agree on: driver, kernel, firmware.
WITH held AS (
    SELECT DISTINCT place, number, value
    FROM agreed
)

SELECT p.class AS class, k.topic AS topic, k.key AS key, h.value AS value, count(*) AS nodes
FROM held AS h
INNER JOIN keys AS k ON k.number = h.number
INNER JOIN peers AS p ON p.place = h.place
GROUP BY p.class, k.topic, k.key, h.value
