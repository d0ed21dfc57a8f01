-- Prelude: how the key's log is read. Put before every script of this folder that names it.
-- An entry is a flat list of names and values; each of ours has `event` and `token`. Unknown events are passed over.

local ENDS = {succeeded = true, failed = true, cancelled = true, released = true}

-- What a script answers; mirrored by `store.Answer`.
local OWNER, WAIT, ENDED, LAPSED, REFUSED, INIT, DONE, LOST, GONE = 1, 2, 3, 4, 5, 6, 7, 8, 9

local function whole(number)
  return string.format('%.0f', number) -- tostring() would print 1.8e+15
end

local clock

local function now_us()
  if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000000 + time[2]
  end
  return clock
end

local function now_ms()
  return math.floor(now_us() / 1000)
end

local function ms_of(id)
  return tonumber(string.match(id, '^%d+'))
end

-- A fencing token of ours, or nil for what was planted: beyond 2^53 two tokens in a row would be the same number.
local function token_of(text)
  local number = string.match(text or '', '^%d+$') and tonumber(text)
  return number and number < 9007199254740992 and number or nil
end

local function count_of(text)
  return #(text or '') <= 15 and tonumber(string.match(text or '', '^%d+$')) or 0
end

local function fields_of(entry)
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  fields.id, fields.raw = entry[1], entry[2]
  return fields
end

-- Reads one of our keys. A type that is not ours was planted, and is dropped.
local function read(key, command, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then
      error(reply.err)
    end
    redis.call('DEL', key)
    return redis.call(command, key, ...)
  end
  return reply
end

-- The log's last flight: the fields of its `claimed` entry, with `ended` (the fields of its end) and `forgotten`.
-- A field that another release does not write has the value that claims least.
local function last_flight(stream)
  local ends, forgotten, upper = {}, {}, '+'
  while true do
    local page = read(stream, 'XREVRANGE', upper, '-', 'COUNT', 2)
    for _, entry in ipairs(page) do
      local fields = fields_of(entry)
      local token = fields.token
      if not token_of(token) then
        -- not ours
      elseif fields.event == 'claimed' then
        fields.ended = ends[token]
        fields.forgotten = forgotten[token] or fields.continues ~= nil
        fields.life = whole(math.max(1, count_of(fields.life)))
        fields.takeovers = whole(count_of(fields.takeovers))
        fields.nonce, fields.recent, fields.ownerId = fields.nonce or '', fields.recent or '', fields.ownerId or ''
        return fields
      elseif fields.event == 'forgotten' then
        forgotten[token] = true
      elseif ENDS[fields.event] and not ends[token] then
        fields.dropped = forgotten[token] -- by a `forget` after the end
        ends[token] = fields
      end
    end
    if #page < 2 then
      return nil
    end
    upper = '(' .. page[#page][1]
  end
end

-- The first entry after the id `since` that `matches`.
local function find(stream, since, matches)
  local lower = '(' .. since
  while true do
    local page = read(stream, 'XRANGE', lower, '+', 'COUNT', 16)
    for _, entry in ipairs(page) do
      local fields = fields_of(entry)
      if matches(fields) then
        return fields
      end
    end
    if #page < 16 then
      return nil
    end
    lower = '(' .. page[#page][1]
  end
end

local function end_of(stream, token, since)
  return find(stream, since, function(fields)
    return fields.token == token and ENDS[fields.event]
  end)
end

-- The flight of `token` if it is open: its board is there, or its lease lapsed and the log holds neither its end nor a newer claim.
-- A claim that waits for its number (INIT) does not close it.
local function open_flight(meta, stream, token)
  read(stream, 'XRANGE', '-', '-', 'COUNT', 1) -- drops what is no log, before anything is written
  local board = read(meta, 'HMGET', 'ownerToken', 'forgotten')
  if board[1] == token then
    return {live = true, forgotten = board[2]}
  elseif board[1] then
    return nil
  end
  local last = last_flight(stream)
  if last and last.token == token and not last.ended then
    return last
  end
  return nil
end

-- What has become of a flight that is not open: its end, another owner, or nothing is known of it (data were lost).
local function fate(meta, stream, token, since)
  local ended = end_of(stream, token, since)
  if ended then
    return {ENDED, ended.raw}
  elseif redis.call('EXISTS', meta) == 0 and not last_flight(stream) then
    return {GONE}
  end
  return {LOST}
end
