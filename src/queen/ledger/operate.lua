-- Carries out an operator's order on one scope, as `ScopeState.obey` does; returns the fields its hash had before.
-- KEYS  the scope's hash;  ARGV  order, name, is it a group (0 or 1), the budget (<Bdd, or nothing for the guard's)
local scope, order, name, group, budget = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local STATE = '<BI4dddd'
local before = redis.call('HGETALL', scope)
local stored = redis.call('HGET', scope, 's')
local gives = order == 'allow' or (order == 'budget' and budget ~= '')
if not stored and not gives then return before end

local flags, size, queries, bets, extra, count, test = 4 * group, 0, 0, 0, 0, 0, string.rep('\0', 8)
if stored then
  flags, size, queries, bets, extra, count = struct.unpack(STATE, stored)
  test = string.sub(stored, -8)
end
local alarmed, allowed = flags % 2, math.floor(flags / 2) % 2
if order == 'pardon' then
  for i = 1, math.ceil(size / 8) do redis.call('HDEL', scope, 'w' .. i) end
  alarmed, size, bets = 0, 0, 0
elseif order == 'budget' then
  if budget == '' then redis.call('HDEL', scope, 'b') else redis.call('HSET', scope, 'b', budget) end
else
  allowed = order == 'allow' and 1 or 0
end
local state = struct.pack(STATE, alarmed + 2 * allowed + 4 * group, size, queries, bets, extra, count) .. test
redis.call('HSET', scope, 's', state, 'n', name)
return before
