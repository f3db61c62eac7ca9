DROP TABLE onefold.{partition}
