-- Nodes of each class by the status of their last capture of each day (number of the day since 1970) in 30 days.
WITH last_of_day AS (
    SELECT c.node AS node, floor(c.seconds / 86400) AS day, max(c.time) AS time
    FROM captures AS c
    CROSS JOIN settings AS s
    WHERE c.seconds >= s.month_s
    GROUP BY c.node, floor(c.seconds / 86400)
)

SELECT c.class AS class, d.day AS day, coalesce(c.status, 'no_verdict') AS status, count(DISTINCT c.node) AS nodes
FROM last_of_day AS d
INNER JOIN captures AS c ON c.node = d.node AND c.time = d.time
GROUP BY c.class, d.day, coalesce(c.status, 'no_verdict')
