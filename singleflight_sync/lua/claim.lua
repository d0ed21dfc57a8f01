-- Claims the flight of a key: a fresh result, the lead, or a place in the queue. Idempotent under its nonce, also after the lease.
--
-- KEYS  1 result  2 meta  3 stream  4 owner-seq (absent on a Cluster, where it lives in another slot: the claim is then INIT)
-- ARGV  1 nonce of this claim; '' only looks
--       2 "lease life takeovers failures": lease ms, life of the log ms, most takeovers, 1 = takes a kept failure
--       3 owner id  4 key  5 "1" = a stored value carries no token
--       and for who comes back (all or none; '' = not so):
--       6 token that is followed  7 log id from which it is read  8 token under which this follower was counted
--       9 token whose owner's process is gone  10 SHA-1 of stored bytes that cannot be read  11 token that is continued after a loss of data
-- Returns the stored bytes, or
--       {OWNER, token, log id, takeovers}  {WAIT, token or '', lease left ms, log id, place, forgotten, owner id, continues, lease ms}
--       {ENDED, fields}  {LAPSED} (only looked)  {REFUSED} (this nonce's flight is over)  {INIT}  {LOST} (cannot continue)

-- A hit comes first: to make the functions of the preludes costs as much as the rest of it.
if #ARGV == 5 and ARGV[5] == '0' then
  local fresh = redis.pcall('GET', KEYS[1])
  if type(fresh) == 'string' and string.find(fresh, '^%d+:') then
    return fresh
  end
end

-- prelude: log board

local RECENT_BYTES = 1024 -- the nonces of the last flights, carried along so that a late copy of a claim is known

local nonce = ARGV[1]
local followed, since, counted, dead, unreadable, continues = ARGV[6] or '', ARGV[7] or '', ARGV[8] or '', ARGV[9] or '', ARGV[10] or '', ARGV[11] or ''

if followed ~= '' then
  local ended = end_of(KEYS[3], followed, since)
  if ended then
    return {ENDED, ended.raw}
  end
end

-- Where the value is not ours alone, somebody may have written one since this very claim was executed.
local mine = ARGV[5] == '1' and nonce ~= '' and read(KEYS[2], 'HMGET', 'nonce')[1] == nonce
if continues == '' and not mine then
  local stored = read(KEYS[1], 'GET')
  if stored and unreadable ~= '' and redis.sha1hex(stored) == unreadable then
    redis.call('DEL', KEYS[1])
  elseif stored and (ARGV[5] == '1' or string.find(stored, '^%d+:')) then
    return stored
  end
end

local lease, life, most, failures = string.match(ARGV[2], '^(%d+) (%d+) (%d+) (%d)$')
lease = tonumber(lease)

local left = redis.call('PTTL', KEYS[2])
local board = left == -2 and {} or read(KEYS[2], 'HMGET', 'nonce', 'status', 'ownerToken', 'logId', 'forgotten', 'ownerId',
  'continues', 'leaseMs', 'followers', 'takeovers', 'lifeMs')
local lives = board[1] and board[2] and tonumber(board[8]) and count_of(board[9]) == tonumber(board[9])
if left == -1 or left == 0 or (left > 0 and not lives) or (nonce ~= '' and dead ~= '' and board[3] == dead) then
  redis.call('DEL', KEYS[2]) -- planted, over by the server's own clock, or its owner's process is gone
  board, left = {}, -2
end

if left > 0 then
  if board[1] == nonce then
    if board[2] == 'INIT' then
      return {INIT}
    end
    redis.call('PEXPIRE', KEYS[2], lease)
    redis.call('PEXPIRE', KEYS[3], life)
    return {OWNER, board[3], board[4], count_of(board[10])}
  elseif continues ~= '' then
    return {LOST}
  end
  local token, id, place = board[3] or '', board[4], 0
  -- Needs no memory, and so lets the count through when memory is full. Never the board's own life: it would drift.
  redis.call('PEXPIRE', KEYS[3], math.max(count_of(board[11]), left))
  if counted == '' or counted ~= token then
    place = redis.call('HINCRBY', KEYS[2], 'followers', 1)
  end
  if not id then
    local last = read(KEYS[3], 'XREVRANGE', '+', '-', 'COUNT', 1)
    id = last[1] and last[1][1] or '0-0'
  end
  return {WAIT, token, left, id, place, board[5] or '', board[6] or '', board[7] or '', tonumber(board[8])}
end

if nonce == '' then
  return {LAPSED}
end

local last = last_flight(KEYS[3])
local flight = {nonce = nonce, ownerId = ARGV[3], life = life, takeovers = '0', recent = ''}
if last then
  if last.nonce == nonce and not last.ended then
    redis.call('PEXPIRE', KEYS[3], life)
    post(KEYS[2], last, lease, ARGV[4])
    return {OWNER, last.token, last.id, tonumber(last.takeovers)}
  elseif continues ~= '' then
    return {LOST}
  end
  flight.recent = string.sub(last.nonce .. ' ' .. last.recent, 1, RECENT_BYTES)
  if string.find(flight.recent, nonce, 1, true) then
    return {REFUSED}
  end
  local takeovers, ended = tonumber(last.takeovers), last.ended
  if ended and ended.event == 'failed' and not ended.dropped and (failures == '1' or ended.limit)
      and now_ms() < ms_of(ended.id) + count_of(ended.keep) then
    return {ENDED, ended.raw}
  elseif not ended or ended.counted == '1' then
    takeovers = takeovers + 1
  elseif ended.event ~= 'released' then
    takeovers = 0
  end
  if takeovers > tonumber(most) then
    local entry = {'event', 'failed', 'token', last.token, 'limit', whole(takeovers - 1), 'keep', whole(MARGIN_MS)}
    redis.call('XADD', KEYS[3], '*', unpack(entry))
    redis.call('PEXPIRE', KEYS[3], math.max(tonumber(life), 2 * MARGIN_MS))
    return {ENDED, entry}
  end
  flight.takeovers = whole(takeovers)
end
if continues ~= '' then
  flight.continues = continues
end

if KEYS[4] then
  flight.token = next_token(KEYS[4], last and token_of(last.token) or 0)
  return open(KEYS[2], KEYS[3], flight, lease, ARGV[4])
end
redis.call('HSET', KEYS[2], 'v', '1', 'status', 'INIT', 'nonce', nonce, 'ownerId', flight.ownerId, 'key', ARGV[4], 'leaseMs', whole(lease),
  'lifeMs', life, 'followers', '0', 'takeovers', flight.takeovers, 'recent', flight.recent, 'continues', continues)
redis.call('PEXPIRE', KEYS[2], math.min(lease, 3000))
return {INIT}
