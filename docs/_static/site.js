// Search shows excerpts of the pages it finds. A browser refuses to fetch them from a disk.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
