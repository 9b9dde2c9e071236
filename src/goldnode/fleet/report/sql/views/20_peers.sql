-- Known nodes with the platform (model of the machine) that they are compared within. place: a number, which groups faster than a name.
-- stored
WITH platforms AS (
    SELECT l.node AS node, max(f.value) AS platform
    FROM facts AS f
    INNER JOIN latest AS l ON l.node = f.node AND l.time = f.time
    WHERE l.known = 1 AND f.key = 'identity.product.name' AND f.fault IS NULL
    GROUP BY l.node
)

SELECT l.node AS node, l.class AS class, l.time AS time, coalesce(p.platform, '') AS platform,
    row_number() OVER (ORDER BY l.node) AS place
FROM latest AS l
LEFT JOIN platforms AS p ON p.node = l.node
WHERE l.known = 1
