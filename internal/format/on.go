//go:build next

package format

const next = 1
