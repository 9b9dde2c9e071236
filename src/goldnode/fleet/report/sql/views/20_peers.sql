-- Known nodes with the platform (model of the machine) that they are compared within.
-- place and pool: numbers of the node, and of its class and platform, which group faster than names.
-- stored
WITH platforms AS (
    SELECT l.node AS node, max(f.value) AS platform
    FROM facts AS f
    INNER JOIN latest AS l ON l.node = f.node AND l.time = f.time
    WHERE l.known = 1 AND f.key = 'identity.product.name' AND f.fault IS NULL
    GROUP BY l.node
)

SELECT l.node AS node, l.class AS class, l.time AS time, coalesce(p.platform, '') AS platform,
    CAST(row_number() OVER (ORDER BY l.node) AS INTEGER) AS place,
    CAST(dense_rank() OVER (ORDER BY l.class, coalesce(p.platform, '')) AS INTEGER) AS pool
FROM latest AS l
LEFT JOIN platforms AS p ON p.node = l.node
WHERE l.known = 1
