-- Nodes of each class by the status of their last capture of each day (number of the day since 1970) in 30 days.
-- not_reported: nodes with an earlier capture, and none of that day.
WITH last_of_day AS (
    SELECT c.node AS node, floor(c.seconds / 86400) AS day, max(c.time) AS time
    FROM captures AS c
    CROSS JOIN settings AS s
    WHERE c.seconds >= s.month_s
    GROUP BY c.node, floor(c.seconds / 86400)
),

reported AS (
    SELECT c.class AS class, d.day AS day, coalesce(c.status, 'no_verdict') AS status, count(DISTINCT c.node) AS nodes
    FROM last_of_day AS d
    INNER JOIN captures AS c ON c.node = d.node AND c.time = d.time
    GROUP BY c.class, d.day, coalesce(c.status, 'no_verdict')
),

sums AS (
    SELECT class, day, sum(nodes) AS nodes
    FROM reported
    GROUP BY class, day
),

firsts AS (
    SELECT c.node AS node, l.class AS class, min(floor(c.seconds / 86400)) AS day
    FROM captures AS c
    INNER JOIN latest AS l ON l.node = c.node
    GROUP BY c.node, l.class
),

known AS (
    SELECT s.class AS class, s.day AS day, count(f.node) - max(s.nodes) AS nodes
    FROM sums AS s
    INNER JOIN firsts AS f ON f.class = s.class
    WHERE f.day <= s.day
    GROUP BY s.class, s.day
)

SELECT class, day, status, nodes
FROM reported
UNION ALL
SELECT class, day, 'not_reported' AS status, nodes
FROM known
WHERE nodes > 0
