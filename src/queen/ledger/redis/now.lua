-- The time by which budgets renew, in whole Unix seconds: that of the server which holds this key.
-- KEYS  any
return tonumber(redis.call('TIME')[1])
