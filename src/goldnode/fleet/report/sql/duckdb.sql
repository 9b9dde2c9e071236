-- Functions that the views use and that each engine names in its own way: here DuckDB.
CREATE OR REPLACE MACRO names(x) AS list_sort(list(DISTINCT x));
CREATE OR REPLACE MACRO listed(x) AS array_to_string(list_sort(list(DISTINCT x)), ', ');
CREATE OR REPLACE MACRO middle(x) AS quantile_cont(x, 0.5);
CREATE OR REPLACE MACRO board(item) AS split_part(item, '/', 1);
