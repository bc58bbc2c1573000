-- Only while its reader holds the lane, in the same snapshot; a part of `read_lane`.
AND EXISTS (SELECT 1 FROM postroom_lease AS h
            WHERE h.stream = :stream AND h.lane = {lane} AND h.owner = :owner AND h.token = {token})
