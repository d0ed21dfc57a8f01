-- Makes a claim that waited for its number the open flight (on a Cluster). A repeat answers with the token already there.
-- prelude: log board
--
-- KEYS  1 meta  2 stream
-- ARGV  1 nonce of the claim  2 token  3 lease ms  4 life of the log ms  5 key
-- Returns {OWNER, token, log id, takeovers}  {INIT, last token} (the number is not above the log's last)  {REFUSED} (somebody else's turn)

local board = read(KEYS[1], 'HMGET', 'nonce', 'status', 'ownerToken', 'logId', 'takeovers', 'ownerId', 'recent', 'continues', 'followers')
local lease, last = tonumber(ARGV[3]), last_flight(KEYS[2])
if board[1] == ARGV[1] and board[2] == 'RUNNING' then
  redis.call('PEXPIRE', KEYS[1], lease)
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  return {OWNER, board[3], board[4], tonumber(board[5])}
elseif not board[1] and last and last.nonce == ARGV[1] and not last.ended then
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  post(KEYS[1], last, lease, ARGV[5])
  return {OWNER, last.token, last.id, tonumber(last.takeovers)}
elseif board[1] ~= ARGV[1] then
  return {REFUSED}
end
if last and token_of(last.token) >= tonumber(ARGV[2]) then
  return {INIT, last.token}
end
local flight = {token = ARGV[2], nonce = ARGV[1], life = ARGV[4], takeovers = board[5], ownerId = board[6], recent = board[7] or '',
  followers = board[9]}
if board[8] and board[8] ~= '' then
  flight.continues = board[8]
end
return open(KEYS[1], KEYS[2], flight, lease, ARGV[5])
