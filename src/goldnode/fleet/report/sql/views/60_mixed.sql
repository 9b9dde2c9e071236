-- Cohorts and other groups whose known nodes differ in what they must agree on. One row for each value.
WITH members AS (
    SELECT l.cohort AS name, p.place AS place
    FROM latest AS l
    INNER JOIN peers AS p ON p.node = l.node
    WHERE coalesce(l.cohort, '') <> ''
    UNION
    SELECT g.name AS name, p.place AS place
    FROM groups AS g
    INNER JOIN peers AS p ON p.node = g.node
),

held AS (
    SELECT m.name AS name, m.place AS place, a.number AS number, a.slot AS slot, a.value AS value
    FROM agreed AS a
    INNER JOIN members AS m ON m.place = a.place
),

differing AS (
    SELECT name, number, slot
    FROM held
    GROUP BY name, number, slot
    HAVING min(value) <> max(value)
)

SELECT h.name AS name, k.topic AS topic, k.key AS key, h.slot AS slot, h.value AS value, count(*) AS n, names(p.node) AS nodes
FROM held AS h
INNER JOIN differing AS d ON d.name = h.name AND d.number = h.number AND d.slot = h.slot
INNER JOIN keys AS k ON k.number = h.number
INNER JOIN peers AS p ON p.place = h.place
GROUP BY h.name, k.topic, k.key, h.slot, h.value
