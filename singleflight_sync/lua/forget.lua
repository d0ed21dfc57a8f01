-- Drops the result or the kept failure of a key, and marks its open flight: those in it get its outcome, it stores nothing.
-- prelude: log
--
-- KEYS  1 meta  2 result  3 stream
-- ARGV  1 token of the flight that is meant, '' = whichever  2 "1" = a stored value carries no token
-- Returns {1 if a result was there, 1 if a kept failure or an open flight was there, token of the open flight, or ''}

local wanted, bare = ARGV[1], ARGV[2] == '1'
local function meant(token)
  return wanted == '' or wanted == token
end

local board = read(KEYS[1], 'HMGET', 'ownerToken', 'lifeMs', 'status', 'forgotten')
local last = last_flight(KEYS[3])
local open
if board[1] then
  open = {token = board[1], life = count_of(board[2]) > 0 and board[2] or '20000', forgotten = board[4], live = true}
elseif last and not last.ended then
  open = last -- lapsed; somebody else's claim that waits for its number (INIT) does not end it
end
if open and not meant(open.token) then
  open = nil
end

local found = {0, 0, open and open.token or ''}
local stored = wanted == '' or (bare and open ~= nil)
if not stored and not bare then
  stored = string.match(read(KEYS[2], 'GETRANGE', 0, 31), '^(%d+):') == wanted
end
if stored then
  found[1] = redis.call('DEL', KEYS[2])
end

local ended = last and last.ended
local kept = ended and ended.event == 'failed' and not ended.dropped and meant(last.token)
  and now_ms() < ms_of(ended.id) + count_of(ended.keep)
local marked = open or (kept and last)
if marked then
  found[2] = 1
  redis.call('PEXPIRE', KEYS[3], marked.life) -- needs no memory, and so lets the rest through when memory is full
  if kept or not marked.forgotten then
    if marked.live then
      redis.call('HSET', KEYS[1], 'forgotten', '1')
    end
    redis.call('XADD', KEYS[3], '*', 'event', 'forgotten', 'token', marked.token)
    redis.call('PEXPIRE', KEYS[3], marked.life)
  end
end
return found
