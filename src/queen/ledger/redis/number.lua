-- The number of a test among those of its account, counted from 1; a new one gets the next.
-- KEYS  the hash of all tests;  ARGV  the fields of the test and of the number of tests in its account
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known then return tonumber(known) end
local number = redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
redis.call('HSET', KEYS[1], ARGV[1], number)
return number
