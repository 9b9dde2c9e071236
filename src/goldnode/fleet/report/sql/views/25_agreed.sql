-- Values of each known node that cohorts must agree on: driver, kernel, firmware.
-- stored
SELECT v.place AS place, v.number AS number, '' AS slot, v.value AS value
FROM loose_values AS v
INNER JOIN keys AS k ON k.number = v.number
WHERE k.agree = 1 AND v.value IS NOT NULL
UNION ALL
SELECT DISTINCT f.place AS place, k.number AS number, f.item AS slot, f.value AS value
FROM peer_facts AS f
INNER JOIN keys AS k ON k.key = f.key
WHERE k.agree = 1 AND k.loose = 0 AND f.fault IS NULL
