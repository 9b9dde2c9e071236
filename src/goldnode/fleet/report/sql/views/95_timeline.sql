-- Nodes of each class by the status of their last capture of each day (number of the day since 1970) in 30 days.
-- not_reported: nodes with an earlier capture, and none of that day. A day on which no node of a class has reported has
-- this row alone, once its nodes would be stale. silent: nodes of the last day that have no capture at all.
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

digits AS (
    SELECT 0 AS digit
    UNION ALL SELECT 1
    UNION ALL SELECT 2
    UNION ALL SELECT 3
    UNION ALL SELECT 4
    UNION ALL SELECT 5
    UNION ALL SELECT 6
    UNION ALL SELECT 7
    UNION ALL SELECT 8
    UNION ALL SELECT 9
),

calendar AS (
    SELECT floor(s.month_s / 86400) + 1 + 10 * tens.digit + ones.digit AS day
    FROM digits AS tens
    CROSS JOIN digits AS ones
    CROSS JOIN settings AS s
    WHERE floor(s.month_s / 86400) + 1 + 10 * tens.digit + ones.digit <= floor(s.fresh_s / 86400)
),

class_days AS (
    SELECT class, day, nodes
    FROM sums
    UNION ALL
    SELECT c.class AS class, d.day AS day, 0 AS nodes
    FROM (SELECT DISTINCT class FROM firsts) AS c
    CROSS JOIN calendar AS d
    LEFT JOIN sums AS s ON s.class = c.class AND s.day = d.day
    WHERE s.nodes IS NULL
),

known AS (
    SELECT s.class AS class, s.day AS day, count(f.node) - max(s.nodes) AS nodes
    FROM class_days AS s
    INNER JOIN firsts AS f ON f.class = s.class
    WHERE f.day <= s.day
    GROUP BY s.class, s.day
)

SELECT class, day, status, CAST(nodes AS BIGINT) AS nodes
FROM reported
UNION ALL
SELECT class, day, 'not_reported' AS status, CAST(nodes AS BIGINT) AS nodes
FROM known
WHERE nodes > 0
UNION ALL
SELECT l.class AS class, max(floor(s.now_s / 86400)) AS day, 'silent' AS status, CAST(count(l.node) AS BIGINT) AS nodes
FROM latest AS l
CROSS JOIN settings AS s
WHERE l.state = 'silent'
GROUP BY l.class
