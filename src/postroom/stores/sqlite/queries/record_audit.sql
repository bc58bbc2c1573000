INSERT INTO postroom_audit (at, who, what, how_many, about) VALUES (:at, :who, :what, :how_many, :about)
