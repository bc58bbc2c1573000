-- Which of these messages are done. The first two conditions lead to the rows.
SELECT consumer, id FROM postroom_inbox FORCE INDEX (PRIMARY)
WHERE consumer IN :consumers AND id IN :ids AND (consumer, id) IN :acceptances AND state = 'done'
