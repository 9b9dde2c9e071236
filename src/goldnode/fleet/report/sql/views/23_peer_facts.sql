-- Facts of the latest capture of known nodes. It reads what the files have of these alone; the view facts has each capture whole.
WITH replaced AS (
    SELECT p.place AS place, r.key AS key
    FROM replaced_facts AS r
    INNER JOIN peers AS p ON p.node = r.node AND p.time = r.time
)

SELECT b.place AS place, f.item AS item, f.key AS key, f.value AS value, f.fault AS fault
FROM stored_facts AS f
INNER JOIN peer_bases AS b ON b.class = f.class AND b.node = f.node AND b.held = f.time
LEFT JOIN replaced AS r ON r.place = b.place AND r.key = f.key
WHERE r.key IS NULL
UNION ALL
SELECT p.place AS place, f.item AS item, f.key AS key, f.value AS value, f.fault AS fault
FROM replacing_facts AS f
INNER JOIN peers AS p ON p.node = f.node AND p.time = f.time
