-- Functions that the views use and that each engine names in its own way: here ClickHouse.
CREATE OR REPLACE FUNCTION names AS (x) -> arraySort(groupUniqArray(x));
CREATE OR REPLACE FUNCTION listed AS (x) -> arrayStringConcat(arraySort(groupUniqArray(toString(x))), ', ');
CREATE OR REPLACE FUNCTION middle AS (x) -> quantileExactInclusive(0.5)(x);
CREATE OR REPLACE FUNCTION board AS (item) -> splitByChar('/', item)[1];
