INSERT INTO postroom_audit (at, who, what, how_many, about)
VALUES (UTC_TIMESTAMP(6), :who, :what, :how_many, :about)
