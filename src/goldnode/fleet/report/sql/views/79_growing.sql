-- Counters that have grown in the window: the only ones whose steps are worth their memory.
-- stored
SELECT n.node AS node, n.item AS item, n.key AS key
FROM numbers AS n
INNER JOIN rates AS r ON r.key = n.key
WHERE n.value > 0
GROUP BY n.node, n.item, n.key
HAVING max(n.value) > min(n.value)
