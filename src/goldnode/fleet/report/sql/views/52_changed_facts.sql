-- Facts that differ between the two times. A value that could not be read is no change.
-- A part that was replaced, such as a GPU, is one row with the key `part` and both identities.
-- stored
WITH both_times AS (
    SELECT f.node AS node, f.key AS key, f.item AS item, f.value AS value, f.fault AS fault, 1 AS is_new
    FROM facts AS f
    INNER JOIN moments AS m ON m.node = f.node AND m.time = f.time
    INNER JOIN keys AS k ON k.key = f.key
    INNER JOIN changed_sections AS c ON c.node = f.node AND c.section = k.section
    WHERE k.compared = 1 AND k.kind IN ('fact', 'part')
    UNION ALL
    SELECT f.node AS node, f.key AS key, f.item AS item, f.value AS value, f.fault AS fault, 0 AS is_new
    FROM facts AS f
    INNER JOIN moments AS m ON m.node = f.node AND m.earlier = f.time
    INNER JOIN keys AS k ON k.key = f.key
    INNER JOIN changed_sections AS c ON c.node = f.node AND c.section = k.section
    WHERE k.compared = 1 AND k.kind IN ('fact', 'part')
),

paired AS (
    SELECT
        node,
        key,
        item,
        max(CASE WHEN is_new = 1 THEN value END) AS new_value,
        max(CASE WHEN is_new = 0 THEN value END) AS old_value,
        max(CASE WHEN fault IS NOT NULL THEN 1 ELSE 0 END) AS faults
    FROM both_times
    GROUP BY node, key, item
),

differing AS (
    SELECT p.node AS node, p.key AS key, p.item AS item, p.new_value AS new_value, p.old_value AS old_value, k.loose AS loose,
        k.topic AS topic, k.section AS section
    FROM paired AS p
    INNER JOIN keys AS k ON k.key = p.key
    WHERE p.faults = 0 AND coalesce(p.new_value, '␀') <> coalesce(p.old_value, '␀')
),

boards AS (
    SELECT
        b.node AS node,
        k.section AS section,
        board(b.item) AS part,
        max(b.is_new) AS now_there,
        min(b.is_new) AS only_now
    FROM both_times AS b
    INNER JOIN keys AS k ON k.key = b.key
    WHERE k.loose = 1
    GROUP BY b.node, k.section, board(b.item)
),

replaced AS (
    SELECT node, section, part, now_there
    FROM boards
    WHERE now_there = 0 OR only_now = 1
)

SELECT d.node AS node, d.topic AS topic, d.key AS key, CASE WHEN d.loose = 1 THEN '' ELSE d.item END AS slot,
    d.old_value AS old_value, d.new_value AS new_value
FROM differing AS d
LEFT JOIN replaced AS r ON r.node = d.node AND r.section = d.section AND r.part = board(d.item) AND d.loose = 1
WHERE r.node IS NULL
UNION ALL
SELECT
    node,
    'part' AS topic,
    concat(section, '.part') AS key,
    '' AS slot,
    CASE WHEN now_there = 0 THEN part END AS old_value,
    CASE WHEN now_there = 1 THEN part END AS new_value
FROM replaced
