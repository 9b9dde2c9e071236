-- Values that some GPUs of a node lack, and that each GPU of the majority of nodes has. slot: how many of how many lack it.
-- A value that could not be read is not missing. Missing values of several topics on one node are one topic: GPU values.
-- variants has few rows, since most nodes have equal counts. Of numbers only the counts are read, not values and items.
-- stored
WITH replaced AS (
    SELECT p.place AS place, c.key AS key, length(c."values") AS n
    FROM stored_changes AS c
    INNER JOIN peers AS p ON p.node = c.node AND p.time = c.time
    WHERE length(c."values") > 0
),

held AS (
    SELECT v.place AS place, k.number AS number, v.n AS n
    FROM loose_values AS v
    INNER JOIN part_keys AS k ON k.number = v.number
    UNION ALL
    SELECT b.place AS place, k.number AS number, count(*) AS n
    FROM stored_numbers AS n
    INNER JOIN part_keys AS k ON k.key = n.key
    INNER JOIN peer_bases AS b ON b.class = n.class AND b.node = n.node AND b.held = n.time
    LEFT JOIN replaced AS r ON r.place = b.place AND r.key = n.key
    WHERE r.key IS NULL
    GROUP BY b.place, k.number
    UNION ALL
    SELECT r.place AS place, k.number AS number, r.n AS n
    FROM replaced AS r
    INNER JOIN part_keys AS k ON k.key = r.key
),

counted AS (
    SELECT h.place AS place, h.number AS number, CAST(sum(h.n) AS INTEGER) AS n
    FROM held AS h
    GROUP BY h.place, h.number
),

boards AS (
    SELECT p.place AS place, max(p.pool) AS pool, max(c.n) AS n
    FROM counted AS c
    INNER JOIN part_keys AS k ON k.number = c.number
    INNER JOIN peers AS p ON p.place = c.place
    WHERE k.board = 1
    GROUP BY p.place
),

variants AS (
    SELECT b.pool AS pool, c.number AS number, c.n AS n, b.n AS boards, c.n * 1e0 / b.n AS ratio, count(*) AS nodes
    FROM counted AS c
    INNER JOIN boards AS b ON b.place = c.place
    GROUP BY b.pool, c.number, c.n, b.n
),

shares AS (
    SELECT pool, number, ratio, sum(nodes) AS n, sum(sum(nodes)) OVER (PARTITION BY pool, number) AS total
    FROM variants
    GROUP BY pool, number, ratio
),

short AS (
    SELECT
        v.pool AS pool,
        v.number AS number,
        v.n AS held,
        v.boards AS boards,
        concat(
            CAST(CAST(round(u.ratio * v.boards - v.n) AS INTEGER) AS VARCHAR), ' of ',
            CAST(CAST(round(u.ratio * v.boards) AS INTEGER) AS VARCHAR)
        ) AS slot,
        u.n AS n,
        u.total AS total
    FROM variants AS v
    INNER JOIN shares AS u ON u.pool = v.pool AND u.number = v.number
    CROSS JOIN settings AS s
    WHERE u.total >= s.min_nodes AND u.n >= s.min_share * u.total AND v.ratio < u.ratio
),

lacking AS (
    SELECT c.place AS place, k.topic AS topic, k.key AS key, h.slot AS slot, h.n AS n, h.total AS total
    FROM counted AS c
    INNER JOIN boards AS b ON b.place = c.place
    INNER JOIN short AS h ON h.pool = b.pool AND h.number = c.number AND h.held = c.n AND h.boards = b.n
    INNER JOIN part_keys AS k ON k.number = c.number
),

topic_counts AS (
    SELECT place, count(DISTINCT topic) AS topics
    FROM lacking
    GROUP BY place
)

SELECT
    p.node AS node,
    p.class AS class,
    p.platform AS platform,
    CASE WHEN t.topics > 1 THEN 'GPU values' ELSE l.topic END AS topic,
    l.key AS key,
    l.slot AS slot,
    l.n AS n,
    l.total AS total
FROM lacking AS l
INNER JOIN topic_counts AS t ON t.place = l.place
INNER JOIN peers AS p ON p.place = l.place
