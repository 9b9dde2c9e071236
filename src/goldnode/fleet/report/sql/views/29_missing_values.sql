-- Values that some GPUs of a node lack, and that each GPU of the majority of nodes has. slot: how many of how many lack it.
-- A value that could not be read is not missing. Missing values of several topics on one node are one topic: GPU values.
-- stored
WITH held AS (
    SELECT p.place AS place, f.key AS key, count(*) AS n
    FROM facts AS f
    INNER JOIN part_keys AS k ON k.key = f.key
    INNER JOIN peers AS p ON p.node = f.node AND p.time = f.time
    GROUP BY p.place, f.key
    UNION ALL
    SELECT p.place AS place, n.key AS key, count(*) AS n
    FROM numbers AS n
    INNER JOIN part_keys AS k ON k.key = n.key
    INNER JOIN peers AS p ON p.node = n.node AND p.time = n.time
    GROUP BY p.place, n.key
),

counted AS (
    SELECT p.node AS node, h.key AS key, sum(h.n) AS n
    FROM held AS h
    INNER JOIN peers AS p ON p.place = h.place
    GROUP BY p.node, h.key
),

boards AS (
    SELECT c.node AS node, max(c.n) AS n
    FROM counted AS c
    INNER JOIN part_keys AS k ON k.key = c.key
    WHERE k.board = 1
    GROUP BY c.node
),

ratios AS (
    SELECT p.class AS class, p.platform AS platform, c.node AS node, c.key AS key, c.n AS n, b.n AS boards,
        c.n * 1e0 / b.n AS ratio
    FROM counted AS c
    INNER JOIN boards AS b ON b.node = c.node
    INNER JOIN peers AS p ON p.node = c.node
),

shares AS (
    SELECT class, platform, key, ratio, count(*) AS n, sum(count(*)) OVER (PARTITION BY class, platform, key) AS total
    FROM ratios
    GROUP BY class, platform, key, ratio
),

lacking AS (
    SELECT
        r.node AS node,
        r.class AS class,
        r.platform AS platform,
        k.topic AS topic,
        r.key AS key,
        concat(
            CAST(CAST(round(u.ratio * r.boards - r.n) AS INTEGER) AS VARCHAR), ' of ',
            CAST(CAST(round(u.ratio * r.boards) AS INTEGER) AS VARCHAR)
        ) AS slot,
        u.n AS n,
        u.total AS total
    FROM ratios AS r
    INNER JOIN shares AS u ON u.class = r.class AND u.platform = r.platform AND u.key = r.key
    INNER JOIN part_keys AS k ON k.key = r.key
    CROSS JOIN settings AS s
    WHERE u.total >= s.min_nodes AND u.n >= s.min_share * u.total AND r.ratio < u.ratio
),

topic_counts AS (
    SELECT node, count(DISTINCT topic) AS topics
    FROM lacking
    GROUP BY node
)

SELECT
    l.node AS node,
    l.class AS class,
    l.platform AS platform,
    CASE WHEN t.topics > 1 THEN 'GPU values' ELSE l.topic END AS topic,
    l.key AS key,
    l.slot AS slot,
    l.n AS n,
    l.total AS total
FROM lacking AS l
INNER JOIN topic_counts AS t ON t.node = l.node
