-- Slow nodes by their captures: the bound of the median of the last ones is worse than the floor of class and platform.
-- The floor is the median of the nodes, less the greater of the margin and of `sigmas` robust standard deviations.
-- With fewer captures than `bounds` has rows for, no node is named.
-- It reads what the files have of the metrics, and not every capture whole (view numbers).
WITH held AS (
    SELECT c.node AS node, c.time AS time, b.item AS item, b.key AS key, b.value AS value
    FROM metrics AS m
    INNER JOIN watched_numbers AS b ON b.key = m.key
    INNER JOIN stored_captures AS c ON c.class = b.class AND c.node = b.node AND c.held = b.time
    LEFT JOIN replaced_watched AS k ON k.class = c.class AND k.node = c.node AND k.time = c.time AND k.key = b.key
    WHERE k.key IS NULL
    UNION ALL
    SELECT r.node AS node, r.time AS time, r.item AS item, r.key AS key, r.value AS value
    FROM replacing_watched AS r
    INNER JOIN metrics AS m ON m.key = r.key
),

ordered AS (
    SELECT
        n.node AS node,
        n.item AS item,
        n.key AS key,
        m.sign * n.value AS value,
        m.margin AS margin,
        row_number() OVER (PARTITION BY n.node, n.item, n.key ORDER BY n.time DESC) AS age
    FROM held AS n
    INNER JOIN metrics AS m ON m.key = n.key
    INNER JOIN captures AS c ON c.node = n.node AND c.time = n.time
    CROSS JOIN settings AS s
    WHERE c.seconds >= s.trend_s
),

recent AS (
    SELECT o.node AS node, o.item AS item, o.key AS key, o.value AS value, o.margin AS margin,
        row_number() OVER (PARTITION BY o.node, o.item, o.key ORDER BY o.value DESC) AS place,
        count(*) OVER (PARTITION BY o.node, o.item, o.key) AS n
    FROM ordered AS o
    CROSS JOIN settings AS s
    WHERE o.age <= s.samples
),

medians AS (
    SELECT p.class AS class, p.platform AS platform, r.node AS node, r.item AS item, r.key AS key, max(r.margin) AS margin,
        max(r.n) AS n, middle(r.value) AS value,
        max(CASE WHEN r.place = b.place THEN r.value END) AS bound
    FROM recent AS r
    INNER JOIN bounds AS b ON b.n = r.n
    INNER JOIN peers AS p ON p.node = r.node
    GROUP BY p.class, p.platform, r.node, r.item, r.key
),

centres AS (
    SELECT class, platform, key, middle(value) AS value, count(DISTINCT node) AS nodes
    FROM medians
    GROUP BY class, platform, key
),

spreads AS (
    SELECT m.class AS class, m.platform AS platform, m.key AS key, 1.4826 * middle(abs(m.value - c.value)) AS sigma
    FROM medians AS m
    INNER JOIN centres AS c ON c.class = m.class AND c.platform = m.platform AND c.key = m.key
    GROUP BY m.class, m.platform, m.key
)

SELECT
    m.node AS node,
    m.class AS class,
    m.item AS item,
    m.key AS key,
    m.n AS n,
    abs(m.value) AS value,
    abs(m.bound) AS bound,
    abs(c.value) AS centre,
    p.sigma AS sigma,
    abs(c.value - greatest(m.margin * abs(c.value), s.sigmas * p.sigma)) AS floor_value,
    c.nodes AS nodes,
    CASE WHEN c.value > 0 THEN 1 - m.value / c.value ELSE 1 - c.value / m.value END AS loss
FROM medians AS m
INNER JOIN centres AS c ON c.class = m.class AND c.platform = m.platform AND c.key = m.key
INNER JOIN spreads AS p ON p.class = m.class AND p.platform = m.platform AND p.key = m.key
CROSS JOIN settings AS s
WHERE c.nodes >= s.min_nodes AND m.bound < c.value - greatest(m.margin * abs(c.value), s.sigmas * p.sigma)
