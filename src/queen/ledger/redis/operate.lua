-- Carries out an operator's order on one scope, as `ScopeState.obey` does; returns the fields its hash had before.
-- KEYS  the scope's hash, its two strings of evidence
-- ARGV  order, name, is it a group (0 or 1), the budget (<Bdd, or nothing for the guard's), and where it renews the same
--       again with its periods (see judge.lua), else nothing
local scope, order, name, group, budget, periods = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local STATE, STATE_SIZE = '<Bdddd', 33
local before = redis.call('HGETALL', scope)
local stored = redis.call('HGET', scope, 's')
local gives = order == 'allow' or (order == 'budget' and budget ~= '')
if not stored and not gives then return before end
if stored and #stored ~= STATE_SIZE then
  return redis.error_reply('LAYOUT an entry was written by an older version; run: queen migrate')
end

local flags, queries, extra, pictures, answered = 4 * group, 0, 0, 0, 0
if stored then flags, queries, extra, pictures, answered = struct.unpack(STATE, stored) end
local alarmed, allowed = flags % 2, math.floor(flags / 2) % 2
if order == 'pardon' then
  redis.call('HDEL', scope, 'w', 'h', 'a')
  redis.call('DEL', KEYS[2], KEYS[3])
  alarmed = 0
elseif order == 'budget' then
  redis.call('HDEL', scope, 'b', 'p')
  if budget ~= '' then redis.call('HSET', scope, 'b', budget) end
  if periods ~= '' then redis.call('HSET', scope, 'p', periods) end
else
  allowed = order == 'allow' and 1 or 0
end
local state = struct.pack(STATE, alarmed + 2 * allowed + 4 * group, queries, extra, pictures, answered)
redis.call('HSET', scope, 's', state, 'n', name)
return before
