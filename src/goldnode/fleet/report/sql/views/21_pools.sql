-- Classes and platforms of known nodes, by their numbers.
SELECT pool, class, platform, count(*) AS nodes
FROM peers
GROUP BY pool, class, platform
