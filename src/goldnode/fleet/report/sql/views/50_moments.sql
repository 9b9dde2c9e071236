-- Known nodes with their numbers, the time of their latest capture, and of the last one before the time that it is compared with.
-- stored
WITH earlier AS (
    SELECT c.node AS node, max(c.time) AS time
    FROM captures AS c
    CROSS JOIN settings AS s
    WHERE c.seconds <= s.before_s AND c.seconds >= s.back_s
    GROUP BY c.node
)

SELECT p.node AS node, p.class AS class, p.place AS place, p.time AS time, e.time AS earlier
FROM peers AS p
INNER JOIN earlier AS e ON e.node = p.node
WHERE e.time < p.time
