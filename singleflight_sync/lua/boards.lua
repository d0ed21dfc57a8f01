-- Reads notice boards for people, and takes flights that are over out of the index.
--
-- KEYS  1 .. n meta keys, one for each tag  n + 1 live (absent on a Cluster, where it lives in another slot)
-- ARGV  1 .. n tags of the index
-- Returns the server's time in ms, then for each tag JSON of its fields and its lease left in ms, or '' where the flight is over.

local time = redis.call('TIME')
local boards = {string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))}
for i, tag in ipairs(ARGV) do
  local left, board = redis.call('PTTL', KEYS[i]), nil
  if left > 0 then
    board = redis.pcall('HMGET', KEYS[i], 'key', 'status', 'ownerToken', 'ownerId', 'startedAt', 'heartbeatAt', 'leaseMs', 'followers',
      'takeovers', 'forgotten')
  end
  if board and not board.err and board[1] and board[2] then
    board[#board + 1] = left
    boards[i + 1] = cjson.encode(board)
  else
    boards[i + 1] = ''
    if KEYS[#ARGV + 1] then
      redis.pcall('ZREM', KEYS[#ARGV + 1], tag)
    end
  end
end
return boards
