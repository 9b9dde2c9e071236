-- Counters that have grown in the window: the only ones whose steps are worth their memory.
-- It reads the rows of the files: a value that did not change is in them once.
-- stored
WITH held AS (
    SELECT node, item, key, value
    FROM watched_numbers
    UNION ALL
    SELECT node, item, key, value
    FROM replacing_watched
)

SELECT n.node AS node, n.item AS item, n.key AS key
FROM held AS n
INNER JOIN rates AS r ON r.key = n.key
WHERE n.value > 0
GROUP BY n.node, n.item, n.key
HAVING max(n.value) > min(n.value)
