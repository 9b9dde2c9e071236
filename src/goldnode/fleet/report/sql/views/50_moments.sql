-- Known nodes with the time of their latest capture, and of the last one before the time that it is compared with.
-- stored
WITH earlier AS (
    SELECT c.node AS node, max(c.time) AS time
    FROM captures AS c
    CROSS JOIN settings AS s
    WHERE c.seconds <= s.before_s AND c.seconds >= s.back_s
    GROUP BY c.node
)

SELECT l.node AS node, l.class AS class, l.time AS time, e.time AS earlier
FROM latest AS l
INNER JOIN earlier AS e ON e.node = l.node
WHERE l.known = 1 AND e.time < l.time
