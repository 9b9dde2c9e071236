-- How many rows of each known node have each value of the facts of interchangeable parts, such as GPUs.
-- value: null where it could not be read, and where no view compares it. Half of all rows are of these parts: they are read once.
-- stored
SELECT
    f.place AS place,
    k.number AS number,
    CASE WHEN k.kind = 'fact' AND k.compared = 1 AND f.fault IS NULL THEN f.value END AS value,
    count(*) AS n
FROM peer_facts AS f
INNER JOIN keys AS k ON k.key = f.key
WHERE k.loose = 1
GROUP BY f.place, k.number, CASE WHEN k.kind = 'fact' AND k.compared = 1 AND f.fault IS NULL THEN f.value END
