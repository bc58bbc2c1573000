SELECT GET_LOCK(:name, :patience)
