-- Devices whose canary results become slower: Theil-Sen slope of the logarithm over 9 to 48 results of 30 days.
-- Only devices whose last three results are slower than their first three are worth all pairs. Kendall's S shows the fall with 99.99 %, it is at least `loss`, and `sigmas` robust deviations of the results from the slope.
WITH ordered AS (
    SELECT
        r.node AS node,
        r.runner AS runner,
        r.metric AS metric,
        r.device AS device,
        r.unit AS unit,
        r.simulated AS simulated,
        r.seconds / 86400.0 AS day,
        r.sign * ln(r.value) AS speed,
        row_number() OVER (PARTITION BY r.node, r.runner, r.metric, r.device ORDER BY r.seconds, r.result) AS place,
        row_number() OVER (PARTITION BY r.node, r.runner, r.metric, r.device ORDER BY r.seconds DESC, r.result DESC) AS age
    FROM results AS r
    WHERE r.uncounted IS NULL AND r.metric IS NOT NULL AND r.quantile = 'p50'
),

candidates AS (
    SELECT
        o.node AS node,
        o.runner AS runner,
        o.metric AS metric,
        o.device AS device,
        count(*) AS n,
        max(o.day) - min(o.day) AS days
    FROM ordered AS o
    CROSS JOIN settings AS s
    WHERE o.age <= 48
    GROUP BY o.node, o.runner, o.metric, o.device
    HAVING
        count(*) >= 9
        AND avg(CASE WHEN o.place <= 3 THEN o.speed END) - avg(CASE WHEN o.age <= 3 THEN o.speed END) > max(s.loss) / 2
),

points AS (
    SELECT o.node AS node, o.runner AS runner, o.metric AS metric, o.device AS device, o.day AS day, o.speed AS speed
    FROM ordered AS o
    INNER JOIN candidates AS c
        ON c.node = o.node AND c.runner = o.runner AND c.metric = o.metric AND c.device = o.device
    WHERE o.age <= 48
),

slopes AS (
    SELECT
        a.node AS node,
        a.runner AS runner,
        a.metric AS metric,
        a.device AS device,
        middle((b.speed - a.speed) / (b.day - a.day)) AS slope,
        sum(CASE WHEN b.speed > a.speed THEN 1 WHEN b.speed < a.speed THEN -1 ELSE 0 END) AS score
    FROM points AS a
    INNER JOIN points AS b ON b.node = a.node AND b.runner = a.runner AND b.metric = a.metric AND b.device = a.device
    WHERE a.day < b.day
    GROUP BY a.node, a.runner, a.metric, a.device
),

rests AS (
    SELECT
        p.node AS node,
        p.runner AS runner,
        p.metric AS metric,
        p.device AS device,
        p.speed - w.slope * p.day AS rest
    FROM points AS p
    INNER JOIN slopes AS w ON w.node = p.node AND w.runner = p.runner AND w.metric = p.metric AND w.device = p.device
),

middles AS (
    SELECT node, runner, metric, device, middle(rest) AS rest
    FROM rests
    GROUP BY node, runner, metric, device
),

spreads AS (
    SELECT r.node AS node, r.runner AS runner, r.metric AS metric, r.device AS device, 1.4826 * middle(abs(r.rest - m.rest)) AS sigma
    FROM rests AS r
    INNER JOIN middles AS m ON m.node = r.node AND m.runner = r.runner AND m.metric = r.metric AND m.device = r.device
    GROUP BY r.node, r.runner, r.metric, r.device
)

SELECT
    w.node AS node,
    l.class AS class,
    w.metric AS metric,
    w.device AS item,
    c.n AS n,
    c.days AS days,
    1 - exp(w.slope) AS a_day,
    1 - exp(w.slope * c.days) AS loss
FROM slopes AS w
INNER JOIN candidates AS c ON c.node = w.node AND c.runner = w.runner AND c.metric = w.metric AND c.device = w.device
INNER JOIN spreads AS p ON p.node = w.node AND p.runner = w.runner AND p.metric = w.metric AND p.device = w.device
INNER JOIN latest AS l ON l.node = w.node
CROSS JOIN settings AS s
WHERE
    l.known = 1
    AND -w.score >= 3.719 * sqrt(c.n * (c.n - 1) * (2 * c.n + 5) / 18.0)
    AND 1 - exp(w.slope * c.days) >= s.loss
    AND -w.slope * c.days >= s.sigmas * p.sigma
