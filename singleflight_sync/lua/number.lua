-- Issues a fencing token (on a Cluster, where the number dispenser lives in a slot of its own).
-- prelude: log board
--
-- KEYS  1 owner-seq
-- ARGV  1 token that the new one must exceed
-- Returns the token.

return next_token(KEYS[1], tonumber(ARGV[1]))
