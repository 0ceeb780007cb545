"""What a copy costs: how good a copy so many honest answers make, and which limits keep it below a bound.

`curve` holds the figures and reads between them, `students` trains one reference student, `measure` trains all of them,
`limits` turns a bound on copies into limits, `words` says it in sentences and `stored` finds it in a bundle. Plain
arrays go in and plain figures come out: `queen.fit.price` brings the images of a model and its answers.
"""
