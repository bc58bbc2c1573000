INSERT INTO postroom_audit (at, who, what, how_many, about)
VALUES (clock_timestamp(), :who, :what, :how_many, :about)
