-- Gives back a claim that got no number (on a Cluster).
--
-- KEYS  1 meta
-- ARGV  1 nonce of the claim
-- Returns 1 if it was there.

local board = redis.call('HMGET', KEYS[1], 'nonce', 'status')
if board[1] == ARGV[1] and board[2] == 'INIT' then
  return redis.call('DEL', KEYS[1])
end
return 0
