/** Whether all is tried that a release must stand, and not only what each change must: `make thorough` says so. */
export const THOROUGH = Boolean(process.env.ATTNWIDGET_THOROUGH);
